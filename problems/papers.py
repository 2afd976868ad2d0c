"""References of problems and algorithms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper."""

    # authors: all, by initials and surname; venue: with its year
    authors: str
    title: str
    venue: str
    link: str = ""  # identifier such as "arXiv:1602.05629" or "doi:..."; empty for none

    @property
    def short(self) -> str:
        """As in "McMahan et al., AISTATS 2017"."""
        surnames = [name.split()[-1] for name in self.authors.split(", ")]
        first = " & ".join(surnames) if len(surnames) == 2 else surnames[0]
        return f"{first}{' et al.' if len(surnames) > 2 else ''}, {self.venue}"


# Algorithms
FEDAVG = Paper(
    "B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas",
    "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    "AISTATS 2017",
    "arXiv:1602.05629",
)
ADAM = Paper("D. P. Kingma, J. Ba", "Adam: A Method for Stochastic Optimization", "ICLR 2015", "arXiv:1412.6980")
FEDPROX = Paper(
    "T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith",
    "Federated Optimization in Heterogeneous Networks",
    "MLSys 2020",
    "arXiv:1812.06127",
)
SCAFFOLD = Paper(
    "S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh",
    "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    "ICML 2020",
    "arXiv:1910.06378",
)
FEDBN = Paper(
    "X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou",
    "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    "ICLR 2021",
    "arXiv:2102.07623",
)
FEDOPT = Paper(
    "S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan",
    "Adaptive Federated Optimization",
    "ICLR 2021",
    "arXiv:2003.00295",
)
FEDDYN = Paper(
    "D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama",
    "Federated Learning Based on Dynamic Regularization",
    "ICLR 2021",
    "arXiv:2111.04263",
)
D_PSGD = Paper(
    "X. Lian, C. Zhang, H. Zhang, C.-J. Hsieh, W. Zhang, J. Liu",
    "Can Decentralized Algorithms Outperform "
    "Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent",
    "NeurIPS 2017",
    "arXiv:1705.09056",
)
CODA = Paper(
    "Z. Guo, M. Liu, Z. Yuan, L. Shen, W. Liu, T. Yang",
    "Communication-Efficient Distributed Stochastic AUC Maximization with Deep Neural Networks",
    "ICML 2020",
    "arXiv:2005.02426",
)
LOCAL_SGDA = Paper(
    "Y. Deng, M. Mahdavi",
    "Local Stochastic Gradient Descent Ascent: Convergence Analysis and Communication Efficiency",
    "AISTATS 2021",
    "arXiv:2102.13152",
)
CODASCA = Paper(
    "Z. Yuan, Z. Guo, Y. Xu, Y. Ying, T. Yang",
    "Federated Deep AUC Maximization for Heterogeneous Data with a Constant Communication Complexity",
    "ICML 2021",
    "arXiv:2102.04635",
)
FEDREP = Paper(
    "L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai",
    "Exploiting Shared Representations for Personalized Federated Learning",
    "ICML 2021",
    "arXiv:2102.07078",
)
DITTO = Paper(
    "T. Li, S. Hu, A. Beirami, V. Smith",
    "Ditto: Fair and Robust Federated Learning Through Personalization",
    "ICML 2021",
    "arXiv:2012.04221",
)
FEDROD = Paper(
    "H.-Y. Chen, W.-L. Chao",
    "On Bridging Generic and Personalized Federated Learning for Image Classification",
    "ICLR 2022",
    "arXiv:2107.00778",
)
DISPFL = Paper(
    "R. Dai, L. Shen, F. He, X. Tian, D. Tao",
    "DisPFL: Towards Communication-Efficient Personalized Federated Learning via Decentralized Sparse Training",
    "ICML 2022",
    "arXiv:2206.00187",
)
SCGD = Paper(
    "H. Gao, J. Li, H. Huang",
    "On the Convergence of Local Stochastic Compositional Gradient Descent with Momentum",
    "ICML 2022",
    "PMLR 162:7017-7035",
)
MOMENTUM = Paper(
    "P. Sharma, R. Panda, G. Joshi, P. K. Varshney",
    "Federated Minimax Optimization: Improved Convergence Analyses and Algorithms",
    "ICML 2022",
    "arXiv:2203.04850",
)
FEDNEST = Paper(
    "D. A. Tarzanagh, M. Li, C. Thrampoulidis, S. Oymak",
    "FedNest: Federated Bilevel, Minimax, and Compositional Optimization",
    "ICML 2022",
    "arXiv:2205.02215",
)
SAGDA = Paper(
    "H. Yang, Z. Liu, X. Zhang, J. Liu",
    "SAGDA: Achieving O(ε⁻²) Communication Complexity in Federated Min-Max Learning",
    "NeurIPS 2022",
    "arXiv:2210.00611",
)
FEDGDA_GT = Paper(
    "Z. Sun, E. Wei",
    "A Communication-Efficient Algorithm with Linear Convergence for Federated Minimax Learning",
    "NeurIPS 2022",
    "arXiv:2206.01132",
)
FMGDA = Paper("Anonymous", "On the Convergence of Federated Deep AUC Maximization", "withdrawn from ICLR 2023")
CDMA = Paper(
    "J. Xie, C. Zhang, Z. Shen, W. Liu, H. Qian",
    "CDMA: A Practical Cross-Device Federated Learning Algorithm for General Minimax Problems",
    "AAAI 2023",
    "arXiv:2105.14216",
)
FCSG = Paper(
    "X. Wu, J. Sun, Z. Hu, J. Li, A. Zhang, H. Huang",
    "Federated Conditional Stochastic Optimization",
    "NeurIPS 2023",
    "arXiv:2310.02524",
)
ADAFGDA = Paper(
    "F. Huang, X. Wang, J. Li, S. Chen",
    "Adaptive Federated Minimax Optimization with Lower Complexities",
    "AISTATS 2024",
    "arXiv:2211.07303",
)
FESS_GDA = Paper(
    "W. Shen, M. Huang, J. Zhang, C. Shen",
    "Stochastic Smoothed Gradient Descent Ascent for Federated Minimax Optimization",
    "AISTATS 2024",
    "arXiv:2311.00944",
)
DEPRL = Paper(
    "G. Xiong, G. Yan, S. Wang, J. Li",
    "DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized Learning with Shared Representations",
    "AAAI 2024",
    "arXiv:2312.10815",
)

# Problems
RARE_EVENTS = Paper(
    "G. King, L. Zeng",
    "Logistic Regression in Rare Events Data",
    "Political Analysis 2001",
    "doi:10.1093/oxfordjournals.pan.a004868",
)
FOCAL = Paper(
    "T.-Y. Lin, P. Goyal, R. Girshick, K. He, P. Dollár",
    "Focal Loss for Dense Object Detection",
    "ICCV 2017",
    "arXiv:1708.02002",
)
LOGIT_ADJUSTMENT = Paper(
    "A. K. Menon, S. Jayasumana, A. S. Rawat, H. Jain, A. Veit, S. Kumar",
    "Long-Tail Learning via Logit Adjustment",
    "ICLR 2021",
    "arXiv:2007.07314",
)
FEDLC = Paper(
    "J. Zhang, Z. Li, B. Li, J. Xu, S. Wu, S. Ding, C. Wu",
    "Federated Learning with Label Distribution Skew via Logits Calibration",
    "ICML 2022",
    "arXiv:2209.00189",
)
SOLAM = Paper("Y. Ying, L. Wen, S. Lyu", "Stochastic Online AUC Maximization", "NeurIPS 2016", "NIPS 29:451-459")
MAML = Paper(
    "C. Finn, P. Abbeel, S. Levine",
    "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks",
    "ICML 2017",
    "arXiv:1703.03400",
)
AGNOSTIC = Paper("M. Mohri, G. Sivek, A. T. Suresh", "Agnostic Federated Learning", "ICML 2019", "arXiv:1902.00146")
AUC_MARGIN = Paper(
    "Z. Yuan, Y. Yan, M. Sonka, T. Yang",
    "Large-scale Robust Deep AUC Maximization: A New Surrogate "
    "Loss and Empirical Studies on Medical Image Classification",
    "ICCV 2021",
    "arXiv:2012.03173",
)
SOAP = Paper(
    "Q. Qi, Y. Luo, Z. Xu, S. Ji, T. Yang",
    "Stochastic Optimization of Areas Under Precision-Recall Curves with Provable Convergence",
    "NeurIPS 2021",
    "arXiv:2104.08736",
)
SOPA = Paper(
    "D. Zhu, G. Li, B. Wang, X. Wu, T. Yang",
    "When AUC meets DRO: Optimizing Partial AUC for Deep Learning with Non-Convex Convergence Guarantee",
    "ICML 2022",
    "arXiv:2203.00176",
)
